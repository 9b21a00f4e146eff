"""One actor class per role, and the loop they share: each builds its core, waits to be introduced, and runs it to its
end. The cores themselves are `raysync.engine`'s; a shell only measures, saves and calls Ray. A new role is one file
here and one row in the table of roles.
"""
