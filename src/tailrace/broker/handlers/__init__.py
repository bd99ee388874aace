"""One file per API, and the table of all: the broker serves and advertises every module here that has an `API`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from tailrace.broker.handlers import api_versions
from tailrace.broker.handlers.api import Api
from tailrace.wire.apis import FIRST_OWN_KEY, ApiKey

__all__ = ["APIS", "Api"]


def _found() -> dict[int, Api]:
    apis = [getattr(import_module(f"{__name__}.{module.name}"), "API", None) for module in iter_modules(__path__)]
    return {ApiKey(api.request.API_KEY): api for api in sorted((api for api in apis if api), key=_key)}


def _key(api: Api) -> int:
    return api.request.API_KEY


APIS: dict[int, Api] = _found()
api_versions.TABLE.extend((key, api.min_version, api.max_version) for key, api in APIS.items() if key < FIRST_OWN_KEY)
