"""Who may do what, and what must not be told: tokens and roles (`auth`), quotas on streams (`quota`), what is struck
out of answers and logs (`redaction`), what of the environment reaches user code (`scrubbing`).

Routes get their caller from `service.http.deps`, which asks `auth`; a new role is a member of `auth.Role`. Each threat
and the test that holds it off stand in `deploy/THREATS.md`: a new bound gets a line there.
"""
