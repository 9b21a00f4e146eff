"""The page: static files that draw what the public routes tell, and how they get here and to the browser.

`static` is the page itself, plain ES modules. `fetch` brings the few libraries it is drawn with, `build` does so while
raysync is installed, `assets` has all files ready for the routes.
"""
