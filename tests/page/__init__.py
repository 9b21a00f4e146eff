"""The page in a browser: headless Chromium against a real service."""
