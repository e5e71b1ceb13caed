"""Faults survived: producers and consumers in processes of their own, a server that is hurt, and an oracle outside it.

    python -m faults --minutes 20

`journal.py` is what the processes write to files, `producer.py` and `consumer.py` are these processes, `oracle.py`
judges what they wrote, `world.py` puts server and processes together, `catalogue.py` has what is done to them, and
`cell.py` runs one of it.
"""
