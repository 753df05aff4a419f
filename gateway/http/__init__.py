"""HTTP for all planes: connections, one frozen head, one reader of bodies, refusal of foreign pages.

``connection`` is uvicorn's protocol with limits. When a head is complete it becomes a ``Head``, which never changes: no
other module reads headers, so that a trailer never becomes one. A packet whose head was seen before may be answered
without a parser and a task (``direct``). ``body`` reads bodies once their caller is proven, within its share of memory.
``turns`` and ``crowd`` keep strangers from taking the event loop and all files.

Planes import ``head``, ``body`` and ``streaming``. Nothing here knows a plane.
"""
