"""The page and its files: no token, since they hold nothing; what they show they ask for with the reader's own."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.errors import NotFound
from service.http.etag import parse_tags
from service.page.assets import Asset, page

router = APIRouter(include_in_schema=False)

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-cache",  # kept, and asked about each time: a new version of the service is a new page
    "Vary": "Accept-Encoding",
}


@router.get("/")
@router.head("/")
async def index(request: Request) -> Response:
    """Return the page."""
    return _answer(request, page().entry)


@router.get("/page/{path:path}")
@router.head("/page/{path:path}")
async def file(request: Request, path: str) -> Response:
    """Return one of its files."""
    asset = page().files.get(path)
    if asset is None:
        raise NotFound("file of the page", path[:100])
    return _answer(request, asset)


def _answer(request: Request, asset: Asset) -> Response:
    is_small = "gzip" in request.headers.get("accept-encoding", "")
    tag = f"{asset.tag}-gz" if is_small else asset.tag
    headers = {**_HEADERS, "ETag": f'"{tag}"'}
    if is_small:
        headers["Content-Encoding"] = "gzip"
    known = request.headers.get("if-none-match")
    if known is not None and parse_tags(known, "If-None-Match").match_weakly(tag):
        return Response(status_code=304, headers={**_HEADERS, "ETag": f'"{tag}"'})
    return Response(asset.gzipped if is_small else asset.content, headers=headers, media_type=asset.media_type)
