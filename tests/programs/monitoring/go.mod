// The definitions of ServiceMonitor and PrometheusRule, which are files of this module.
module programs

go 1.24.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
