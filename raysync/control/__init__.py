"""Decisions about a job as a whole, as pure functions that return their reason: `reconcile` (what a controller does),
`adopt` and `admit` (what a service does), `placing` (which node), `incidents`, `budgets` (what is tried again, and how
often), `resuming`, `splice`; and the values they rest on: `view`, `states`, `memory`, the table of `roles`.

Actors and the service import them and carry out what they say; nothing here acts. A new decision is a file with one
function, and a table test.
"""
