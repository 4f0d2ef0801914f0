//! The chart of a run: what each contestant costs, a panel for each case.

use std::path::Path;

use anyhow::{Context as _, Result};
use plotters::backend::SVGBackend;
use plotters::chart::ChartBuilder;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea as _};
use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color as _, IntoFont as _, RGBColor};

use crate::compare::summary::Summary;

/// One case: a metric of each contestant.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) bars: Vec<Bar>,
}

/// A contestant's figure.
pub(crate) struct Bar {
    pub(crate) contestant: String,
    pub(crate) figure: Summary,
    /// Whether it is the contestant that is compared with the others.
    pub(crate) is_subject: bool,
}

/// Writes the panels as an SVG file, side by side. Bars are medians, lines across their ends quartiles.
pub(crate) fn write(path: &Path, panels: &[Panel]) -> Result<()> {
    draw(path, panels).with_context(|| format!("write {}", path.display()))
}

fn draw(path: &Path, panels: &[Panel]) -> Result<()> {
    let rows = panels.iter().map(|panel| panel.bars.len()).max();
    let rows = u32::try_from(rows.unwrap_or(0))?;
    let height = TITLE_HEIGHT + ROW_HEIGHT * rows;
    let width = PANEL_WIDTH * u32::try_from(panels.len())?;
    let image = SVGBackend::new(path, (width, height)).into_drawing_area();
    image.fill(&BACKGROUND)?;
    for (area, panel) in image.split_evenly((1, panels.len())).iter().zip(panels) {
        panel.draw(area, rows)?;
    }
    Ok(image.present()?)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Panel {
    fn draw(&self, area: &Area<'_>, rows: u32) -> Result<()> {
        let longest = self
            .bars
            .iter()
            .map(|bar| bar.figure.quartiles[1])
            .fold(0.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT, TITLE_SIZE).into_font().color(&TEXT))
            .margin(MARGIN)
            .build_cartesian_2d(
                -longest * LABEL_SHARE..longest * FIGURE_SHARE,
                rows.into()..0.0,
            )?;
        let label = (FONT, TEXT_SIZE).into_font().color(&TEXT);
        let right = label.pos(Pos::new(HPos::Right, VPos::Center));
        let left = label.pos(Pos::new(HPos::Left, VPos::Center));
        for (row, bar) in self.bars.iter().enumerate() {
            // A bar fills the middle 60 % of its row.
            let (top, middle, bottom) = (row as f64 + 0.2, row as f64 + 0.5, row as f64 + 0.8);
            let [lower, upper] = bar.figure.quartiles;
            let color = if bar.is_subject { SUBJECT } else { OTHERS };
            let gap = longest * GAP_SHARE;
            chart.draw_series([Rectangle::new(
                [(0.0, top), (bar.figure.median, bottom)],
                color.filled(),
            )])?;
            chart.draw_series([PathElement::new([(lower, middle), (upper, middle)], TEXT)])?;
            chart.draw_series([
                Text::new(bar.contestant.clone(), (-gap, middle), right.clone()),
                Text::new(
                    bar.figure.to_string(),
                    (upper.max(bar.figure.median) + gap, middle),
                    left.clone(),
                ),
            ])?;
        }
        Ok(())
    }
}

// Pixels.
const PANEL_WIDTH: u32 = 330;
const ROW_HEIGHT: u32 = 24;
const TITLE_HEIGHT: u32 = 48;
const MARGIN: u32 = 10;
const TITLE_SIZE: i32 = 15;
const TEXT_SIZE: i32 = 12;
/// The space for names, for figures, and between them and a bar, as shares of the longest bar.
const LABEL_SHARE: f64 = 0.7;
const FIGURE_SHARE: f64 = 1.9;
const GAP_SHARE: f64 = 0.03;
const FONT: &str = "sans-serif";
/// Opaque, so that the chart can be read on a page of any colour.
const BACKGROUND: RGBColor = RGBColor(255, 255, 255);
const TEXT: RGBColor = RGBColor(40, 40, 40);
const SUBJECT: RGBColor = RGBColor(31, 119, 180);
const OTHERS: RGBColor = RGBColor(190, 190, 190);
