//! Pictures: the sweep with its fit, and the decision by the number of accesses. On white, so that they read the same in
//! print and on a dark page.

use hostview_sim::{ByteCount, PageKind, PagePolicy, Profile};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::fit::{Call, Fit};
use super::model::Model;
use super::table::{MappingRow, Sweep};

/// The runs that a cached view is spread over in the picture of a decision.
const RUNS: f64 = 1000.0;

const SIZE: (u32, u32) = (860, 560);
const INK: RGBColor = RGBColor(34, 34, 34);
const REGISTER: RGBColor = RGBColor(0, 90, 181);
const UNREGISTER: RGBColor = RGBColor(190, 60, 10);
const COPIES: RGBColor = RGBColor(110, 110, 110);
const CACHE: RGBColor = RGBColor(0, 120, 90);

type Plot<T> = Result<T, Box<dyn std::error::Error>>;

/// The sweep: cost by size, both axes logarithmic; points with their spread, the fit as lines, one cost per byte dotted.
///
/// # Errors
///
/// The sweep has nothing to draw.
pub fn sweep_svg(sweep: &Sweep, fit: &Fit) -> Plot<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw_sweep(&area, sweep, fit)?;
        area.present()?;
    }
    Ok(svg)
}

fn draw_sweep(area: &DrawingArea<SVGBackend<'_>, Shift>, sweep: &Sweep, fit: &Fit) -> Plot<()> {
    area.fill(&WHITE)?;
    let sizes = sweep.mappings.iter().map(|row| row.bytes as f64);
    let (least, most) = sizes.fold((f64::MAX, 0.0_f64), |(least, most), size| (least.min(size), most.max(size)));
    if sweep.mappings.is_empty() {
        return Err("nothing was registered, so there is nothing to draw".into());
    }
    let all = sweep.mappings.iter().flat_map(|row| [row.register, row.unregister]);
    let (low, high) = all.fold((f64::MAX, 0.0_f64), |(low, high), figures| {
        (low.min(figures.min), high.max(figures.p99.unwrap_or(figures.median)))
    });
    let mut chart = ChartBuilder::on(area)
        .caption("register and unregister by size", ("sans-serif", 20).into_font().color(&INK))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((least / 2.0..most * 2.0).log_scale(), (low / 1.6..high * 1.6).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(RGBColor(238, 238, 238))
        .axis_style(INK)
        .label_style(("sans-serif", 13).into_font().color(&INK))
        .x_desc("bytes")
        .y_desc("microseconds")
        .x_label_formatter(&|bytes| bytes_said(*bytes))
        .y_label_formatter(&|micros| format!("{micros}"))
        .draw()?;
    for (call, colour, name) in [(Call::Register, REGISTER, "register"), (Call::Unregister, UNREGISTER, "unregister")] {
        let figures = |row: &MappingRow| if call == Call::Register { row.register } else { row.unregister };
        for kind in [PageKind::Ordinary, PageKind::Huge] {
            let rows: Vec<&MappingRow> = sweep.mappings.iter().filter(|row| row.kind() == kind).collect();
            let Some(mechanism) = fit.mechanism(call, kind) else { continue };
            let amount = |row: &MappingRow| match call {
                Call::Register => sweep.pages.registered(row) as f64,
                Call::Unregister => sweep.pages.unregistered(row) as f64,
            };
            let line = rows.iter().map(|row| (row.bytes as f64, mechanism.median.at(amount(row))));
            chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
            for row in &rows {
                let (at, figures) = (row.bytes as f64, figures(row));
                let top = figures.p99.unwrap_or(figures.median);
                chart.draw_series([PathElement::new(vec![(at, figures.min), (at, top)], colour.stroke_width(1))])?;
            }
            let points =
                rows.iter().map(|row| Circle::new((row.bytes as f64, figures(row).median), 4, colour.filled()));
            let drawn = chart.draw_series(points)?;
            if kind == PageKind::Ordinary || fit.mechanism(call, PageKind::Ordinary).is_none() {
                drawn
                    .label(format!("{name}: measured, and one constant per mechanism"))
                    .legend(move |(x, y)| Circle::new((x + 10, y), 4, colour.filled()));
            }
        }
        let per_byte = fit.residuals.iter().filter(|residual| {
            residual.call == call && residual.point != hostview_sim::CostPoint::Min && residual.per_byte > low / 1.6
        });
        let dots = per_byte.map(|residual| (residual.bytes as f64, residual.per_byte.min(high * 1.6)));
        chart
            .draw_series(DashedLineSeries::new(dots, 3, 4, colour.stroke_width(1)))?
            .label(format!("{name}: one cost per byte"))
            .legend(move |(x, y)| {
                let dash = |from: i32| PathElement::new(vec![(x + from, y), (x + from + 4, y)], colour);
                dash(6)
            });
    }
    legend(&mut chart, SeriesLabelPosition::UpperLeft)
}

/// The decision for one size: cost of a run by its number of accesses, the crossover marked.
///
/// # Errors
///
/// The drawing fails.
pub fn decision_svg(profile: &Profile, name: &str, bytes: u64, policy: PagePolicy, accesses: u64) -> Plot<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw_decision(&area, profile, (name, bytes, policy), accesses)?;
        area.present()?;
    }
    Ok(svg)
}

fn draw_decision(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    profile: &Profile,
    (name, bytes, policy): (&str, u64, PagePolicy),
    accesses: u64,
) -> Plot<()> {
    area.fill(&WHITE)?;
    let model = Model::median(profile);
    let kind = model.kind(bytes, policy);
    let (pair, copy) = (model.pair(bytes, kind), model.copy(4));
    let crossing = pair / copy;
    let most = (accesses as f64).clamp(crossing * 4.0, 1e9).max(16.0);
    let over_runs = pair / RUNS;
    let (low, high) = (copy.min(over_runs) / 2.0, (most * copy).max(pair) * 2.0);
    let caption = format!("{name}, {}: cost of a run by its accesses", ByteCount(bytes));
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 20).into_font().color(&INK))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d((0.8..most).log_scale(), (low..high).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(RGBColor(238, 238, 238))
        .axis_style(INK)
        .label_style(("sans-serif", 13).into_font().color(&INK))
        .x_desc("accesses in a run")
        .y_desc("microseconds")
        .x_label_formatter(&|count| format!("{count}"))
        .y_label_formatter(&|micros| format!("{micros}"))
        .draw()?;
    let steps = || (0..=60).map(|step| most.powf(f64::from(step) / 60.0));
    chart
        .draw_series(LineSeries::new(steps().map(|count| (count, count * copy)), COPIES.stroke_width(2)))?
        .label("device copies")
        .legend(|(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], COPIES.stroke_width(2)));
    chart
        .draw_series(LineSeries::new(steps().map(|count| (count, pair)), REGISTER.stroke_width(2)))?
        .label("rebuild every run")
        .legend(|(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], REGISTER.stroke_width(2)));
    let once = steps().map(|count| (count, over_runs));
    chart
        .draw_series(DashedLineSeries::new(once, 6, 4, CACHE.stroke_width(2)))?
        .label("cache, over 1,000 runs")
        .legend(|(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], CACHE.stroke_width(2)));
    if crossing >= 0.8 {
        chart.draw_series([Circle::new((crossing, pair), 6, INK.stroke_width(2))])?;
    }
    let from = crossing.floor() + 1.0;
    let note = format!("mapping is cheaper from access {from} on");
    chart.draw_series([Text::new(note, (1.0, pair * 2.6), ("sans-serif", 14).into_font().color(&INK))])?;
    legend(&mut chart, SeriesLabelPosition::UpperLeft)
}

fn legend<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    position: SeriesLabelPosition,
) -> Plot<()>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .label_font(("sans-serif", 13).into_font().color(&INK))
        .draw()?;
    Ok(())
}

/// The ticks lie at powers of ten: decimal units say them exactly.
fn bytes_said(bytes: f64) -> String {
    for (unit, name) in [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")] {
        if bytes >= unit {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} B")
}
