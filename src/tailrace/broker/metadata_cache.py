"""Encoded Metadata responses, kept for as long as the image they describe is the current one.

Clients ask the same question again and again, and encoding a large cluster is the costliest thing that a small
request can ask for. The number of remembered questions is bounded.
"""

from __future__ import annotations

from collections.abc import Hashable

from tailrace.cluster.image import ClusterImage

_MAX_RESPONSES = 64


class MetadataCache:
    """Responses by question, all of one image."""

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._responses: dict[Hashable, bytes] = {}

    def find(self, image: ClusterImage, question: Hashable) -> bytes | None:
        """The response to a question, if it was asked before under this very image."""
        return self._responses.get(question) if image is self._image else None

    def keep(self, image: ClusterImage, question: Hashable, response: bytes) -> None:
        """Remember a response; the oldest gives way where there are too many."""
        if image is not self._image:
            self._image = image
            self._responses.clear()
        elif len(self._responses) >= _MAX_RESPONSES:
            del self._responses[next(iter(self._responses))]
        self._responses[question] = response
