"""Encoded Metadata responses, kept while the image that they describe is current.

Clients repeat the same request, and encoding a large cluster is the most expensive thing that a small request can
cause. The number of cached responses is bounded.
"""

from __future__ import annotations

from collections.abc import Hashable

from tailrace.cluster.image import ClusterImage

_MAX_RESPONSES = 64


class MetadataCache:
    """Responses by request, all for one image."""

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._responses: dict[Hashable, bytes] = {}

    def find(self, image: ClusterImage, question: Hashable) -> bytes | None:
        """Return the cached response to a request, if it is for this very image."""
        return self._responses.get(question) if image is self._image else None

    def keep(self, image: ClusterImage, question: Hashable, response: bytes) -> None:
        """Cache a response; the oldest one is dropped if there are too many."""
        if image is not self._image:
            self._image = image
            self._responses.clear()
        elif len(self._responses) >= _MAX_RESPONSES:
            del self._responses[next(iter(self._responses))]
        self._responses[question] = response
