"""The measured systems, one module each; `SYSTEMS` lists them by name."""

from __future__ import annotations

from bench.systems.kafka import Kafka
from bench.systems.nats import Nats
from bench.systems.rabbitmq import RabbitmqQuorum, RabbitmqStream
from bench.systems.redis import Redis
from bench.systems.system import System
from bench.systems.tailrace import Tailrace

SYSTEMS: dict[str, type[System]] = {
    system.name: system for system in (Tailrace, Kafka, Redis, Nats, RabbitmqQuorum, RabbitmqStream)
}
