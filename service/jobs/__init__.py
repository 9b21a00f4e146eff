"""The service's side of a job's life: which service looks after which job (`manager`), following one to its end
(`follower`), its events into the books (`intake`, `projection`) and out to readers (`feed`, `log_feed`), knobs and
stops (`steering`), user code (`packages`) and what is cleared away (`housekeeping`).

`service.server.wiring` puts them together; routes use `Manager`, its `steering`, and the feeds. What is to be decided
about a job is a pure function in `raysync.control`: a new kind of move is added there, and carried out in `follower`.
"""
