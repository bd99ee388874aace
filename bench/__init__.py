"""The benchmarks: tailrace beside what a user would pick instead, in one run on one machine, as ratios.

`harness/` carries a suite out, `suites/` say what is run, `systems/` are what is measured, `clients/` send the load,
`workloads/` measure. Each imports only those before it: harness, clients, systems, workloads, suites. `c/` and
`peer_clients/` are the clients in C, `kafka/` names Kafka's jars, `results/` has what the last runs found.
"""
