"""The header of a response, for tests that answer as a broker does."""

from __future__ import annotations

import struct


def encode_response_header(correlation_id: int, flexible: bool) -> bytes:
    """The header of a response, without the frame's length."""
    return struct.pack(">i", correlation_id) + (b"\0" if flexible else b"")
