"""The stateful cores, without Ray, clocks or sockets: `coordinator`, `server` (shards), `worker` and its `training`.

They speak in `messages`, return `effects` to whatever host runs them (`core` has the contract), and leave two questions
to ports: who waits for whom (`pacing`), and how updates travel (`exchange`). A new role is a core here, a shell in
`actors.shell` and a row in `raysync.control.roles`.
"""
