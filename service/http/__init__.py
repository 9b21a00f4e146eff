"""The REST interface: what every request passes through, and what goes over HTTP; `service.server.app` joins it.

`routes` has one file per resource, `schemas` their bodies and answers, `views` the way from rows to answers, `vetting`
what a job may bring along, `problems` the one table from error to status, `deps` what routes ask for. The wiring
imports `deps.Parts`, clients import `schemas` and `catalogue`; a new resource is a file in `routes` and a line in its
`__init__`.
"""
