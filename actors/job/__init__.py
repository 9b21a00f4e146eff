"""The controller of a job and what it works with: the group of actors it makes and watches, the link they agreed on,
what they really run with, the code they are given. It decides nothing: `raysync.control` does, and `executor` carries
it out.
"""
