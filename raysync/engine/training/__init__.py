"""A worker's training: the model as flat vectors (`replica`, `binding`), what it shares with the others
(`shared_vector`), computing a step (`trainer`), and the same around a loop of the user's own (`attached`).

Nothing here sends or waits: `raysync.engine.member` does.
"""
