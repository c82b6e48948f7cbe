"""What every simulator is made of: clock, network, broker, disks, faults, and the runner of seeds.

It knows nothing of nodes, projectors or indexers. A simulator adds its actors, its table of faults
and its judges, and undoes nothing of what is here.
"""
