"""The port to what carries the jobs, and the real one behind it.

`port.AsyncRuntime` is what the service asks, question by question from `raysync.runtime`; `gateway` asks a process that
knows Ray, and `local_ray` starts a Ray where there is none. Import the port; only `service.server.wiring` imports the
others. A question is added in `raysync.runtime`, answered in `actors.gateway`, and named in `port`.
"""
