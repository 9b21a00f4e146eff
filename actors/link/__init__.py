"""How cores on different processes reach each other: one port (`base`), two transports, one conformance suite.

`direct` opens sockets of its own (`lane`: those of the coordinator on one machine), `ray` uses actor calls; `frames` is
what travels on both. A new transport is a file with
the methods of `base.Link`, and a line in `actors.shell.core_actor`.
"""
