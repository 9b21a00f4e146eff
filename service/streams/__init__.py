"""One stream of many jobs and studies: `hub` looks which have changed, `source` reads and renders once for all readers,
`reader` knows where one of them is and what it `wanted`, `position` writes that down as the id of each message, and
`multiplex` is the stream. Streams of one job are `service.jobs.feed`'s.
"""
