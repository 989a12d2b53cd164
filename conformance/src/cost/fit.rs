//! The fit: one constant per mechanism, by least squares on relative error.
//!
//! Register costs a floor and something for each page of the allocation's kind; unregister a floor and something for each
//! *host* page. Ordinary and huge heaps are fitted apart. For comparison the same cells are fitted with one cost per byte,
//! which is what #1848 inferred from a single large point.

use hostview_sim::{Cost, CostPoint, PageKind, Profile};
use nalgebra::{DMatrix, DVector};
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::model::Model;
use super::table::{Figures, MappingRow, Sweep};

/// A constant with its 95 % confidence interval; none where there are as many cells as constants.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// The value, in microseconds.
    pub value: f64,
    /// Half the width of the interval.
    pub half_width: Option<f64>,
}

/// A floor and a slope.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Line {
    /// What a call costs before its first page.
    pub floor: Estimate,
    /// What each page, or each byte, adds.
    pub slope: Estimate,
}

impl Line {
    /// What it gives for so many pages or bytes.
    #[must_use]
    pub fn at(&self, amount: f64) -> f64 {
        self.floor.value + self.slope.value * amount
    }
}

/// Which call a cell is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Register.
    Register,
    /// Unregister.
    Unregister,
}

/// A cell of the table against the fit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Residual {
    /// The call.
    pub call: Call,
    /// The size.
    pub bytes: u64,
    /// Whether it is the least or the median.
    pub point: CostPoint,
    /// What was measured.
    pub measured: f64,
    /// What one constant per mechanism gives.
    pub fitted: f64,
    /// What one cost per byte gives.
    pub per_byte: f64,
}

impl Residual {
    /// How far the fit is off, as a part of what was measured.
    #[must_use]
    pub fn off(&self) -> f64 {
        (self.fitted - self.measured) / self.measured
    }

    /// How far one cost per byte is off.
    #[must_use]
    pub fn per_byte_off(&self) -> f64 {
        (self.per_byte - self.measured) / self.measured
    }
}

/// One mechanism, at both points.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mechanism {
    /// The call.
    pub call: Call,
    /// The pages of the allocation.
    pub kind: PageKind,
    /// From the least values.
    pub min: Line,
    /// From the medians.
    pub median: Line,
}

/// What a sweep comes to.
#[derive(Clone, PartialEq, Debug)]
pub struct Fit {
    /// The mechanisms that the sweep has cells for.
    pub mechanisms: Vec<Mechanism>,
    /// The floor of a small copy from the device: least and median.
    pub copy: Option<(Estimate, Estimate)>,
    /// Every cell.
    pub residuals: Vec<Residual>,
}

/// Why a sweep could not be fitted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FitError {
    /// Too few sizes to tell a floor from a slope.
    #[error("{0} pages have one size only, which cannot tell a floor from a cost per page; give two sizes at least")]
    OneSize(PageKind),
    /// No registrations at all.
    #[error("nothing was registered; a fit needs a table with reg_min, reg_med, unreg_min and unreg_med")]
    NoMappings,
}

/// Copies up to this size show the floor alone: the seed's are flat from 4 to 64 bytes.
const FLOOR_COPIES: u64 = 64;

/// Fits a sweep.
///
/// # Errors
///
/// There are too few rows.
pub fn fit(sweep: &Sweep) -> Result<Fit, FitError> {
    if sweep.mappings.is_empty() {
        return Err(FitError::NoMappings);
    }
    let mut mechanisms = Vec::new();
    for kind in [PageKind::Ordinary, PageKind::Huge] {
        let rows: Vec<&MappingRow> = sweep.mappings.iter().filter(|row| row.kind() == kind).collect();
        if rows.is_empty() {
            continue;
        }
        for call in [Call::Register, Call::Unregister] {
            let line = |point| {
                let cells: Vec<(f64, f64)> =
                    rows.iter().map(|row| (amount(sweep, row, call), cell(row, call, point))).collect();
                least_squares(&cells).ok_or(FitError::OneSize(kind))
            };
            mechanisms.push(Mechanism { call, kind, min: line(CostPoint::Min)?, median: line(CostPoint::Median)? });
        }
    }
    let residuals = residuals(sweep, &mechanisms);
    Ok(Fit { mechanisms, copy: copy_floor(sweep), residuals })
}

fn amount(sweep: &Sweep, row: &MappingRow, call: Call) -> f64 {
    match call {
        Call::Register => sweep.pages.registered(row) as f64,
        Call::Unregister => sweep.pages.unregistered(row) as f64,
    }
}

fn cell(row: &MappingRow, call: Call, point: CostPoint) -> f64 {
    let Figures { min, median, .. } = if call == Call::Register { row.register } else { row.unregister };
    if point == CostPoint::Min { min } else { median }
}

fn residuals(sweep: &Sweep, mechanisms: &[Mechanism]) -> Vec<Residual> {
    let mut residuals = Vec::new();
    for call in [Call::Register, Call::Unregister] {
        for point in [CostPoint::Min, CostPoint::Median] {
            let cells: Vec<(f64, f64)> =
                sweep.mappings.iter().map(|row| (row.bytes as f64, cell(row, call, point))).collect();
            let per_byte = least_squares(&cells);
            for row in &sweep.mappings {
                let Some(mechanism) = mechanisms.iter().find(|found| found.call == call && found.kind == row.kind())
                else {
                    continue;
                };
                let line = if point == CostPoint::Min { mechanism.min } else { mechanism.median };
                residuals.push(Residual {
                    call,
                    bytes: row.bytes,
                    point,
                    measured: cell(row, call, point),
                    fitted: line.at(amount(sweep, row, call)),
                    per_byte: per_byte.map_or(f64::NAN, |line| line.at(row.bytes as f64)),
                });
            }
        }
    }
    residuals
}

/// The line that is least off, each cell weighed by its own size; `None` where all amounts are the same.
fn least_squares(cells: &[(f64, f64)]) -> Option<Line> {
    let largest = cells.iter().map(|(amount, _)| *amount).fold(f64::NAN, f64::max);
    if cells.iter().all(|(amount, _)| *amount >= largest) {
        return None;
    }
    // Amounts scaled to 1, so that the columns are alike.
    let design = DMatrix::from_fn(cells.len(), 2, |row, column| {
        let (amount, measured) = cells[row];
        if column == 0 { 1.0 / measured } else { amount / largest / measured }
    });
    let ones = DVector::from_element(cells.len(), 1.0);
    let solution = design.clone().svd(true, true).solve(&ones, 1e-12).ok()?;
    let spread = (&design * &solution - &ones).norm_squared();
    let freedom = cells.len() - 2;
    let inverse = (design.transpose() * &design).try_inverse()?;
    let half_width = |index: usize, scale: f64| {
        let quantile = StudentsT::new(0.0, 1.0, freedom as f64).ok().filter(|_| freedom > 0)?.inverse_cdf(0.975);
        Some(quantile * (spread / freedom as f64 * inverse[(index, index)]).sqrt() / scale)
    };
    Some(Line {
        floor: Estimate { value: solution[0], half_width: half_width(0, 1.0) },
        slope: Estimate { value: solution[1] / largest, half_width: half_width(1, largest) },
    })
}

fn copy_floor(sweep: &Sweep) -> Option<(Estimate, Estimate)> {
    let small: Vec<Figures> =
        sweep.copies.iter().filter(|row| row.bytes <= FLOOR_COPIES).map(|row| row.to_host).collect();
    if small.is_empty() {
        return None;
    }
    let estimate = |of: fn(&Figures) -> f64| {
        let inverse: f64 = small.iter().map(|figures| 1.0 / of(figures)).sum();
        let squares: f64 = small.iter().map(|figures| of(figures).powi(-2)).sum();
        Estimate { value: inverse / squares, half_width: None }
    };
    Some((estimate(|figures| figures.min), estimate(|figures| figures.median)))
}

impl Fit {
    /// The mechanism of a call and page kind.
    #[must_use]
    pub fn mechanism(&self, call: Call, kind: PageKind) -> Option<&Mechanism> {
        self.mechanisms.iter().find(|mechanism| mechanism.call == call && mechanism.kind == kind)
    }

    /// The largest part that any cell is off.
    #[must_use]
    pub fn worst(&self) -> f64 {
        self.residuals.iter().map(|residual| residual.off().abs()).fold(0.0, f64::max)
    }

    /// A profile whose costs are these, and which of its constants the sweep had nothing to say of.
    #[must_use]
    pub fn calibrated(&self, base: &Profile, name: &str) -> (Profile, Vec<&'static str>) {
        let mut profile = base.clone();
        name.clone_into(&mut profile.name);
        let mut kept = Vec::new();
        let costs = &mut profile.costs;
        let places = [
            (Call::Register, PageKind::Ordinary, "register, ordinary pages"),
            (Call::Register, PageKind::Huge, "register, huge pages"),
            (Call::Unregister, PageKind::Ordinary, "unregister, ordinary pages"),
            (Call::Unregister, PageKind::Huge, "unregister, huge pages"),
        ];
        for (call, kind, what) in places {
            let (floor, each) = match (call, kind) {
                (Call::Register, PageKind::Ordinary) => {
                    (&mut costs.register_ordinary, &mut costs.register_per_ordinary_page)
                }
                (Call::Register, PageKind::Huge) => (&mut costs.register_huge, &mut costs.register_per_huge_page),
                (Call::Unregister, PageKind::Ordinary) => {
                    (&mut costs.unregister_ordinary, &mut costs.unregister_per_host_page_ordinary)
                }
                (Call::Unregister, PageKind::Huge) => {
                    (&mut costs.unregister_huge, &mut costs.unregister_per_host_page_huge)
                }
            };
            let Some(mechanism) = self.mechanism(call, kind) else {
                kept.push(what);
                continue;
            };
            *floor = cost(mechanism.min.floor.value, mechanism.median.floor.value);
            *each = cost(mechanism.min.slope.value, mechanism.median.slope.value);
        }
        match self.copy {
            Some((min, median)) => costs.copy = cost(min.value, median.value),
            None => kept.push("copies"),
        }
        (profile, kept)
    }
}

/// Two points of a cost: never negative, and never the wrong way round, whatever noise does to a fit.
fn cost(min: f64, median: f64) -> Cost {
    let min = min.max(0.0);
    Cost { min, median: median.max(min) }
}

/// What a profile's constants say of undoing the 20 mappings of #1848, in microseconds: least and median.
#[must_use]
pub fn teardown(profile: &Profile, tensors: &[(u64, PageKind)]) -> (f64, f64) {
    let of = |model: Model<'_>| tensors.iter().map(|(bytes, kind)| model.unregister(*bytes, *kind)).sum();
    (of(Model::min(profile)), of(Model::median(profile)))
}
