"""The parameter server: a shard, the blocks it owns and their arithmetic, and ledgers of what has been applied.

`shard` is where to begin; what it does with a push is its ledger's: kept for a round that closes once
(`round_ledger`), or applied when it arrives (`arrival_ledger`).
"""
