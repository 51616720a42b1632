"""The brain of kvtroupe: every decision, as plain state machines.

Nothing here awaits, opens, waits, reads a clock or draws a random number: time comes in as `now_s`.
"""
