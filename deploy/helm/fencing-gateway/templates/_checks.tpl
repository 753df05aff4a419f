{{/* The refusals of values that the schema cannot see. Each says what to change. */}}
{{- define "gateway.check" -}}
{{- if and .Values.config .Values.existingConfigMap -}}
{{- fail "config: existingConfigMap is set as well; remove one of them" -}}
{{- end -}}
{{- if not (or .Values.config .Values.existingConfigMap) -}}
{{- fail "config: is empty; set it to the text of gateway.toml (--set-file config=gateway.toml), or name a ConfigMap in existingConfigMap" -}}
{{- end -}}
{{/* A ConfigMap is no place for a secret: those who may read it are many, and its text is in backups and in diffs. */}}
{{- $secret := "dsn|api_key|api_keys|secret|former_secret|client_secret|secret_access_key|signing_keys|evidence_keys|issuer_api_key" -}}
{{/* A number sign within a line may be part of a text, so that only whole lines count as comments. */}}
{{- with regexFind (printf `(?m)^\s*([^#\s][^\n]*[{,.]\s*)?["']?(%s)["']?\s*=` $secret) .Values.config -}}
{{- $key := regexFind `\w+["']?\s*=$` . | trimSuffix "=" | trim | trimAll "\"'" -}}
{{- fail (printf "config: has the secret %s in clear; put it into a Secret that secrets.existing names, and write %s_file = \"/etc/gateway/secrets/…\"" $key $key) -}}
{{- end -}}
{{- range $name, $_ := .Values.secrets.values -}}
{{- if not (regexMatch `^[-._a-zA-Z0-9]+$` $name) -}}
{{- fail (printf "secrets.values: %s cannot be the name of a file; use letters, digits, dots, - and _" $name) -}}
{{- end -}}
{{- end -}}
{{- if .Values.migration.enabled -}}
{{- if not (or .Values.migration.secret.name .Values.migration.databases) -}}
{{- fail "migration.secret.name: is empty; name a Secret with the DSN of the role that is to own the schema, or set migration.enabled to false and run gateway migrate yourself" -}}
{{- end -}}
{{- if and .Values.migration.secret.name .Values.migration.databases -}}
{{- fail "migration.databases: migration.secret.name is set as well; one database has the secret, several have migration.databases" -}}
{{- end -}}
{{- if and .Values.migration.journalSecret.name .Values.migration.databases -}}
{{- fail "migration.journalSecret: several databases have a journalSecret each; move it to the entry of migration.databases" -}}
{{- end -}}
{{- end -}}
{{- range .Values.env -}}
{{- if and .value (regexMatch (printf `(?i)^GATEWAY_(.*__)?(%s)$` $secret) .name) -}}
{{- fail (printf "env: has the secret %s in clear; put it into a Secret that secrets.existing names, or use valueFrom" .name) -}}
{{- end -}}
{{- if and .value (regexMatch (printf `["'](%s)["']\s*:` $secret) .value) -}}
{{- fail (printf "env: has a secret within %s in clear; put it into a Secret that secrets.existing names, or use valueFrom" .name) -}}
{{- end -}}
{{- if and (eq (upper .name) "GATEWAY_POSTGRES__DSN") $.Values.migration.enabled -}}
{{- fail "env: has GATEWAY_POSTGRES__DSN, which the migration would use as well; put the DSN into a Secret that secrets.existing names, and write dsn_file = \"/etc/gateway/secrets/…\"" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.tls.clientAuthorities.secretName (not .Values.tls.secretName) -}}
{{- fail "tls.clientAuthorities: needs tls.secretName, because clients show certificates in TLS" -}}
{{- end -}}
{{- if and (eq .Values.tls.clientCertificates "demand") (not .Values.tls.clientAuthorities.secretName) -}}
{{- fail "tls.clientCertificates: demand needs tls.clientAuthorities.secretName" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.hosts: is empty; name the host of the gateway, and its subdomains if buckets are subdomains" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.egress) -}}
{{- fail "networkPolicy.egress: is empty, so that the gateway would reach neither its database nor its store; add a rule for each" -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas: is above maxReplicas; lower it" -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (not (dig "requests" "cpu" "" .Values.resources)) -}}
{{- fail "autoscaling.cpuPercent: is a share of resources.requests.cpu, which is not set; set it" -}}
{{- end -}}
{{- $anonymous := or .Values.existingConfigMap (regexMatch `(?m)^\s*public_metrics\s*=\s*true` .Values.config) -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.serviceMonitor.apiKeySecret.name) (not $anonymous) -}}
{{- fail "serviceMonitor.apiKeySecret.name: is empty; name a Secret with the API key of a caller with the grant audit, or set public_metrics = true in [telemetry]" -}}
{{- end -}}
{{- end -}}
