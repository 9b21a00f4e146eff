/** Jobs to start from; each is a whole specification. */

const ONEBIT = { push: { kind: "onebit" }, pull: { kind: "onebit" } };

export const EXAMPLES = {
  "SelSync with onebit: synchronise when gradients change": {
    name: "digits",
    task: { kind: "digits" },
    strategy: { kind: "selsync" },
    compression: ONEBIT,
    optimizer: { kind: "sgd", lr: 0.2 },
    scale: { workers: 2, max_workers: 4, cpus_per_worker: 0.5 },
    budget: { steps: 1000 },
    eval: { every: 20 },
  },
  "BSP, dense: the baseline": {
    name: "dense",
    task: { kind: "digits" },
    strategy: { kind: "bsp" },
    optimizer: { kind: "sgd", lr: 0.2 },
    scale: { workers: 2, cpus_per_worker: 0.5 },
    budget: { steps: 500 },
    eval: { every: 20 },
  },
  "Local SGD, every eighth step": {
    name: "local",
    task: { kind: "digits" },
    strategy: { kind: "local_sgd", sync_every: 8 },
    compression: ONEBIT,
    optimizer: { kind: "sgd", lr: 0.2 },
    scale: { workers: 2, cpus_per_worker: 0.5 },
    budget: { steps: 1000 },
    eval: { every: 20 },
  },
  "SSP: workers of uneven speed": {
    name: "uneven",
    task: { kind: "digits" },
    strategy: { kind: "ssp", staleness_bound: 4 },
    optimizer: { kind: "sgd", lr: 0.05 },
    scale: { workers: 4, cpus_per_worker: 0.5 },
    budget: { steps: 1000 },
    eval: { every: 20 },
  },
  "A mesh: four stages, two replicas, nobody waits": {
    name: "mesh",
    task: { kind: "char_lm", depth: 4 },
    strategy: { kind: "async_sparse" },
    schedule: { kind: "async_one_f_one_b" },
    optimizer: { kind: "lookahead", beta1: 0.9 },
    scale: { workers: 2, stages: 4, cpus_per_worker: 0.25 },
    budget: { steps: 300 },
  },
};
