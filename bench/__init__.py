"""The benchmarks: tailrace beside the alternatives that users consider, in one run on one machine, as ratios.

`harness/` carries out suites, `suites/` define what runs, `systems/` are measured, `clients/` send the load,
`workloads/` measure. Each imports only those before it: harness, clients, systems, workloads, suites. `c/` and
`peer_clients/` are the clients in C, `kafka/` names Kafka's jars, `results/` has the results of the last runs.
"""
