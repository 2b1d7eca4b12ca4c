"""Publishes the messages that the waiting room lets go, in batches. A message counts as let go only once it is
confirmed.

"Confirmed" means that the broker has the message in a queue that exists. RabbitMQ says so itself: it confirms each
message of a batch, and returns a message that no queue takes (`mandatory`). With other brokers a queue exists once it
was declared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from amqp.exceptions import ChannelError
from kombu import Producer
from kombu.exceptions import InconsistencyError
from redis.exceptions import ResponseError

from fleetlimit.celery.header import HEADER
from fleetlimit.celery.message import Message
from fleetlimit.celery.producers import BROKER_S, bounded
from fleetlimit.celery.queues import Forbidden, check_target, definition
from fleetlimit.celery.requeue import as_published, undelayed

__all__ = ["BrokerAway", "Parcel", "Publisher"]


class BrokerAway(Exception):  # not a FleetlimitError: it concerns the broker
    """The broker does not answer. Which messages of a batch it has is not known."""


class Parcel:
    """A message on its way back into its queue, with the result: `error` is None once the message is in the queue, and
    `sent` is True from the moment at which the broker may have it."""

    def __init__(self, message: Message, headers: dict[str, Any]) -> None:
        self.message, self.headers = message, headers
        self.error: str | None = "not published"
        self.sent = False

    @property
    def mark(self) -> tuple[str, str]:
        """What distinguishes this message from all others of a batch."""
        return self.message.ticket, str(self.headers[HEADER].get("copy"))


class Publisher:
    """One connection to an app's broker, for one thread."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._connection: Any = None
        self._channel: Any = None
        self._declared: set[str] = set()
        self._forbidden: set[str] = (
            set()
        )  # queues that the broker's user may not declare, or that exist in another form
        self._pending: dict[int, Parcel] = {}
        self._sent = 0

    def publish(self, parcels: Sequence[Parcel]) -> None:
        """Publish all messages. Each parcel then says what became of it.

        :raises BrokerAway: when the broker does not answer. Messages that were sent by then and are not confirmed may
            have arrived.
        """
        with self._translated():
            channel = self._open()
            for one in parcels:
                channel = self._send(channel, one)
            self._settle()
            for one in parcels:
                if (
                    one.error == _RETURNED and one.message.queues
                ):  # the queue has been deleted, so declare it again
                    self._declared.clear()
                    self._send(self._open(), one)
                    self._settle()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            if self._connection:
                self._connection.close()
        self._connection = self._channel = None
        self._declared.clear()
        self._pending.clear()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.close()
            raise BrokerAway(repr(error)) from error

    # --- the channel ------------------------------------------------------------------------------

    def _open(self) -> Any:
        if self._channel is not None and getattr(self._channel, "is_open", True):
            return self._channel
        if self._connection is None or not self._connection.connected:
            options = {**bounded(self._app), "confirm_publish": False}  # batches are confirmed here
            # No heartbeats, because no thread would send them between two batches.
            self._connection = self._app.connection_for_write(
                transport_options=options, heartbeat=0
            )
            self._connection.connect_timeout = BROKER_S
            self._declared.clear()
        self._channel = self._connection.channel()
        self._confirms = self._connection.transport.driver_type == "amqp"
        if self._confirms:
            self._sent = 0
            self._channel.confirm_select()
            self._channel.events["basic_ack"].add(self._on_ack)
            self._channel.events["basic_nack"].add(self._on_nack)
            self._channel.events["basic_return"].add(self._on_return)
        return self._channel

    def _anew(self) -> Any:
        """Open another channel after the broker has closed this one. (The client also reopens a channel by itself, but
        then the broker confirms nothing on it.)"""
        with contextlib.suppress(Exception):
            self._channel.close()
        self._channel = None
        return self._open()

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for one in self._settled(tag, multiple):
            if one.error != _RETURNED:
                one.error = None

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for one in self._settled(tag, multiple):
            one.error = "the broker refused it"

    def _settled(self, tag: int, multiple: bool) -> list[Parcel]:
        tags = [n for n in self._pending if n == tag or (multiple and n < tag)]
        return [self._pending.pop(n) for n in tags]

    def _on_return(self, error: Any, exchange: str, routing_key: str, message: Any) -> None:
        ours = (message.headers or {}).get(HEADER) or {}
        for one in self._pending.values():
            if one.mark == (ours.get("ticket"), ours.get("copy")):
                one.error = _RETURNED

    def _settle(self) -> None:
        """Wait until the broker has confirmed or refused every message that was sent."""
        while self._pending:
            self._connection.drain_events(timeout=BROKER_S)

    # --- one message ------------------------------------------------------------------------------

    def _send(self, channel: Any, one: Parcel) -> Any:
        """Declare the queues of a message and publish it.

        :return: the channel on which to go on.
        """
        message = one.message
        try:
            exchange, routing_key = message.exchange, undelayed(message)
            queues = [definition(self._app, stored) for stored in message.queues]
            ways = ((queue.name, queue.exchange.name, queue.routing_key) for queue in queues)
            check_target(
                self._app, exchange, routing_key, *(name or "" for way in ways for name in way)
            )
            if exchange and not queues and not self._confirms:
                raise Forbidden(f"no queue is known at exchange {exchange!r}")
            what = as_published(message, dict(one.headers))
        except Exception as error:  # the message is forged or broken; the broker may be fine
            one.error = f"{type(error).__name__}: {error}"
            return channel
        try:
            for queue in queues:
                channel = self._declare(channel, queue)
        except Exception as error:
            if self._is_away(error):
                raise
            one.error = f"{type(error).__name__}: {error}"
            return channel
        what |= {"exchange": exchange, "routing_key": routing_key}
        return self._publish_one(channel, one, what, alone=bool(exchange and not queues))

    def _publish_one(self, channel: Any, one: Parcel, what: dict[str, Any], *, alone: bool) -> Any:
        """Publish a message whose queues are declared.

        :param alone: no queue is known at its exchange. If the exchange does not exist, the channel is closed, which
            must hit this message alone.
        :return: the channel on which to go on.
        """
        alone = alone and self._confirms
        if alone:
            self._settle()
        self._sent += 1
        one.error, one.sent = "the broker has not confirmed it", True
        if self._confirms:
            self._pending[self._sent] = one
        try:
            Producer(channel, auto_declare=False).publish(mandatory=True, **what)
            if alone:
                self._settle()
        except ChannelError as error:
            self._pending.pop(self._sent, None)
            one.error = f"{type(error).__name__}: {error}"
            return self._anew()
        except Exception as error:
            if self._is_away(error):
                raise
            self._pending.pop(self._sent, None)  # the message cannot even be encoded
            self._sent -= 1
            one.error = f"{type(error).__name__}: {error}"
            return channel
        if not self._confirms:
            one.error = None
        return channel

    def _is_away(self, error: Exception) -> bool:
        """Whether an error concerns the broker and not only one message. An error concerns one message if the message
        cannot be encoded, or if Redis has something else than a queue under the queue's name."""
        if isinstance(error, ResponseError):
            return not str(error).startswith(("WRONGTYPE", "NOPERM"))
        # For Redis, kombu counts these among its connection errors.
        if isinstance(error, (LookupError, InconsistencyError)):
            return False
        return isinstance(error, self._connection.connection_errors)

    def _declare(self, channel: Any, queue: Any) -> Any:
        """Declare a queue once. If the broker's user may not declare it, or if it exists in another form, messages are
        published to the queue as it is."""
        if queue.name in self._declared or queue.name in self._forbidden:
            return channel
        self._settle()  # a refused declaration closes the channel, and unconfirmed messages would be lost with it
        try:
            queue(channel).declare()
        except ChannelError:
            self._forbidden.add(queue.name)
            return self._anew()
        self._declared.add(queue.name)
        return channel


_RETURNED = "no queue takes it"
