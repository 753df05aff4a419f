// Shows the description of the fencing API. Nothing of the address is listened to: it could name another description.
"use strict";

SwaggerUIBundle({
  url: "/v1/openapi.json",
  dom_id: "#operations",
  deepLinking: true,
  queryConfigEnabled: false,
  validatorUrl: null,
  persistAuthorization: false,
});
