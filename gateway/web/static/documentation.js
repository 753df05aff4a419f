// Shows the description of the fencing API. It ignores parameters of the address, which could name another description.
"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

SwaggerUIBundle({
  url: "/v1/openapi.json",
  dom_id: "#operations",
  deepLinking: true,
  queryConfigEnabled: false,
  validatorUrl: null,
  persistAuthorization: false,
  // Swagger UI encodes each value of a path. A path contains a resource name unencoded, so this decodes it again.
  requestInterceptor: (request) => {
    const [path, ...query] = request.url.split("?");
    const asTyped = path.replace(/%(?:2[1456789ABF]|3[AB]|40)/g, decodeURIComponent);
    return Object.assign(request, { url: [asTyped, ...query].join("?") });
  },
});
