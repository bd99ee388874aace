"""What may go wrong in a benchmark without ending it: the step is recorded as failed, and the run goes on."""

from __future__ import annotations

import subprocess

from confluent_kafka import KafkaException

from tailrace.protocol_client.errors import ProtocolClientError


class ServerFailedError(Exception):
    """A server did not start, ended by itself, or does not do what it must; the message carries its output."""


class ClientFailedError(Exception):
    """A client ended with an error, or did not do all that it was asked to; the message carries its output."""


EXPECTED = (
    ClientFailedError,
    ServerFailedError,
    KafkaException,
    ProtocolClientError,
    OSError,
    subprocess.SubprocessError,
)
