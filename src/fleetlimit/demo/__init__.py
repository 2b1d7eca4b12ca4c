"""The demo: three real workers hold one limit against an API that would break."""
