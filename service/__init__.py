"""The control plane: `raysync serve`, its REST interface, its Python clients and the command line.

Each package is one subject: `http` answers requests, `jobs` looks after jobs, `runtime` is the port to what carries
them, `store` keeps the books, `security` says who may do what, `server` is the process; `client`, `cli` and `page`
are for its users, `deploy` for its operators. From outside, import `service.client`; Ray, torch and `actors` are
imported by `service.cli.local_run` alone. `settings` alone reads the environment: a new setting is a field there, and
an option of `raysync serve`. How a resource is added: README.md, "Adding a resource".
"""
