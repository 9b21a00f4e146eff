"""What a Ray cluster has: its nodes' resources, free and in all, and whether it grows by itself."""

from __future__ import annotations

import logging

import ray

logger = logging.getLogger(__name__)

Resources = dict[str, dict[str, float]]
"""By node."""


def resources() -> tuple[Resources, Resources]:
    """Return what is free on each live node, and what each has."""
    from ray._private.state import available_resources_per_node

    total = {node["NodeID"]: dict(node["Resources"]) for node in ray.nodes() if node["Alive"]}
    going = draining()
    free = {node: found for node, found in available_resources_per_node().items() if node in total.keys() - going}
    return free, total


def draining() -> frozenset[str]:
    """Return the nodes that are about to go: preempted, or told to end. Ray starts nothing there any more."""
    from ray._private.state import state

    try:
        return frozenset(state.get_draining_nodes())
    except Exception as error:  # not known now: a node that goes without notice is survived as well
        logger.info("Ray does not tell which nodes are about to go: %s", error)
        return frozenset()


def grows() -> bool:
    """Return whether an autoscaler looks after the cluster: it names the type of the nodes it starts, which nodes
    that were started by hand do not have.
    """
    from ray._private.worker import global_worker
    from ray.autoscaler.v2.sdk import get_cluster_resource_state

    state = get_cluster_resource_state(global_worker.gcs_client)
    return any(node.ray_node_type_name for node in state.node_states)
