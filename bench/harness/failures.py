"""Failures that do not end a benchmark: the step is recorded as failed, and the run continues."""

from __future__ import annotations

import subprocess

from confluent_kafka import KafkaException

from tailrace.protocol_client.errors import ProtocolClientError


class ServerFailedError(Exception):
    """A server did not start, ended by itself, or misbehaves; the message has its output."""


class ClientFailedError(Exception):
    """A client ended with an error, or did not complete its task; the message has its output."""


EXPECTED = (
    ClientFailedError,
    ServerFailedError,
    KafkaException,
    ProtocolClientError,
    OSError,
    subprocess.SubprocessError,
)
