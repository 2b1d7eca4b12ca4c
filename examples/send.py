"""Sends some tasks to the shop."""

from examples.shop import charge, newsletter, refund, statement

for number in range(20):
    charge.delay(number)
refund.delay(3)
newsletter.delay("acme", 40)
statement.delay("acme")
