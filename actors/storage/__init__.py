"""What outlives the processes of a job: its folder on any file system, the journal of its events, its log lines, the
controller's memory. Everything here is patient with storage that fails for a moment. `folder` is where to begin.
"""
