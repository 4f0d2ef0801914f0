// An OpenTelemetry Collector with its OTLP receiver. It prints the spans that it receives as OTLP's JSON, one request a line.
package main

import (
	"context"
	"fmt"
	"log"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry"
)

func main() {
	settings := otelcol.CollectorSettings{
		BuildInfo: component.NewDefaultBuildInfo(),
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				DefaultScheme:     "file",
				ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
			},
		},
	}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {
		log.Fatal(err)
	}
}

func factories() (otelcol.Factories, error) {
	receivers, err := otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	exporters, err := otelcol.MakeFactoryMap[exporter.Factory](printer())
	return otelcol.Factories{
		Receivers: receivers,
		Exporters: exporters,
		Telemetry: telemetry.NewFactory(noConfig),
	}, err
}

func printer() exporter.Factory {
	kind := component.MustNewType("print")
	create := func(ctx context.Context, set exporter.Settings, config component.Config) (exporter.Traces, error) {
		return exporterhelper.NewTraces(ctx, set, config, printSpans)
	}
	return exporter.NewFactory(kind, noConfig, exporter.WithTraces(create, component.StabilityLevelStable))
}

func printSpans(_ context.Context, spans ptrace.Traces) error {
	text, err := (&ptrace.JSONMarshaler{}).MarshalTraces(spans)
	if err == nil {
		fmt.Println(string(text))
	}
	return err
}

func noConfig() component.Config { return &struct{}{} }
