"""The protocol of object writes: what is announced, sent, settled and forgotten, and in which order.

Mutations and settlements are generators that yield effects. The explorer of ``tests/model`` plays them with late, lost
and repeated requests, and with each rule weakened.
"""
