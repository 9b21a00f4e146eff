"""What people call: `fit`, `submit`, `attach`, and the handles and results they return. Import them from `raysync` or
`actors`, which bring each when it is asked for.
"""
