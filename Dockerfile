FROM python:3.12-slim

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY lua lua
COPY src src
RUN pip install --no-cache-dir --root-user-action=ignore .

# Not root, and not in the sources: what runs is the installed package.
RUN useradd --create-home demo
USER demo
WORKDIR /home/demo

ENV PYTHONUNBUFFERED=1
