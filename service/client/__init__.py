"""Python clients of the service, blocking and asynchronous. Import the four names below from here.

`requests` declares what can be asked, once for both clients: to add a method, write it there. `call` and `stream` are
what a request is, `method` makes methods of them, `retry` says how long to wait, `transport` finds the service.
"""

from __future__ import annotations

from service.client.async_client import AsyncClient
from service.client.call import ApiError
from service.client.client import Client
from service.client.retry import Unreachable

__all__ = ["ApiError", "AsyncClient", "Client", "Unreachable"]
