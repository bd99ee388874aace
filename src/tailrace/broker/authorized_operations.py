"""What a client may do, as the bits that Kafka's protocol has for it: everything, for nobody is kept from anything."""

from __future__ import annotations

from tailrace.security.operations import SUPPORTED, ResourceType, bits

ON_TOPIC = bits(SUPPORTED[ResourceType.TOPIC])
ON_CLUSTER = bits(SUPPORTED[ResourceType.CLUSTER])
ON_GROUP = bits(SUPPORTED[ResourceType.GROUP])
