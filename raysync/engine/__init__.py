"""The stateful cores: worker, shard and coordinator, without Ray, clocks or sockets."""
