/* Runs before anything else is loaded: a token in the address is taken out of it at once and kept for this tab only. */
(() => {
  const take = () => {
    const given = new URLSearchParams(location.hash.slice(1));
    const token = given.get("token");
    if (token === null) return false;
    const path = (given.get("to") ?? "").replace(/^\/+/, "");
    history.replaceState(null, "", `${location.pathname}${location.search}#/${path}`);
    sessionStorage.setItem("raysync.token", token);
    return true;
  };
  take();
  // A page that is open already gets a new token by its address, too.
  addEventListener("hashchange", (event) => {
    if (!take()) return;
    event.stopImmediatePropagation();
    dispatchEvent(new Event("raysync-token"));
    dispatchEvent(new HashChangeEvent("hashchange"));
  });
})();
