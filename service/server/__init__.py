"""The service as a process: its life (`serve`), the application (`app`) and the composition root (`wiring`), the lock
on its folder and address, and the bounds on connections (`protocol`, `connections`).

Nothing but `service.cli` and tests import from here: this package knows all others. A new part of the service is made
in `wiring`, and handed on as one of `service.http.deps.Parts`.
"""
