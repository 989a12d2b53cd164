//! Sweeps as tables: in memory, as CSV, as JSON and on the terminal.
//!
//! The CSV has the seed's own columns. Lines that begin with `#` say where the figures are from; `# host_page_size: 4096`
//! and its like say on what they were taken.

use std::fmt::Write as _;
use std::path::Path;

use hostview_sim::config::{self, ConfigError};
use hostview_sim::{Generation, PageKind, PagePolicy, PageSize};
use serde::{Deserialize, Serialize};

use super::model::kind_of;
use crate::json::without_place;

/// Microseconds of one call over many iterations.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// The least.
    pub min: f64,
    /// The median.
    pub median: f64,
    /// The 99th percentile, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
}

impl Figures {
    /// A call takes time, and its median no less than its minimum.
    fn check(&self, name: &str) -> Result<(), String> {
        let Self { min, median, p99 } = *self;
        let takes_time = |micros: f64| micros.is_finite() && micros > 0.0;
        if let Some(p99) = p99.filter(|micros| !takes_time(*micros)) {
            return Err(format!("`{name}.p99` is {p99}; a call takes more than 0 µs"));
        }
        if takes_time(min) && takes_time(median) && min <= median {
            return Ok(());
        }
        Err(format!("`{name}` takes {min} to {median} µs, which cannot be; give 0 < min <= median"))
    }

    /// The figures of a sample; `None` of an empty one.
    #[must_use]
    pub fn of(mut sample: Vec<f64>) -> Option<Self> {
        sample.sort_by(f64::total_cmp);
        let at = |part: usize| sample.get(((sample.len() - 1) * part).div_ceil(100)).copied();
        Some(Self { min: *sample.first()?, median: at(50)?, p99: at(99) })
    }
}

/// Registrations of one size.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MappingRow {
    /// The size that was allocated and registered.
    pub bytes: u64,
    /// The policy it was allocated by.
    pub policy: PagePolicy,
    /// What register cost.
    pub register: Figures,
    /// What unregister cost.
    pub unregister: Figures,
}

/// Copies of one size.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CopyRow {
    /// The size.
    pub bytes: u64,
    /// From the device.
    pub to_host: Figures,
    /// To the device, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_device: Option<Figures>,
}

/// A size that the platform would not register.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RefusedRow {
    /// The size.
    pub bytes: u64,
    /// The policy.
    pub policy: PagePolicy,
    /// What the platform answered.
    pub answer: String,
}

/// The page sizes of the machine that a sweep was taken on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pages {
    /// The device's ordinary page.
    pub ordinary: PageSize,
    /// The device's huge page.
    pub huge: PageSize,
    /// The host's page.
    pub host: PageSize,
}

impl Default for Pages {
    /// Those of the seed's machine.
    fn default() -> Self {
        let size = |bytes| PageSize::new(bytes).expect("a power of two");
        Self { ordinary: size(4096), huge: size(2 << 20), host: size(4096) }
    }
}

impl Pages {
    fn of(&self, kind: PageKind) -> PageSize {
        match kind {
            PageKind::Ordinary => self.ordinary,
            PageKind::Huge => self.huge,
        }
    }

    /// Pages that registering a row walks.
    #[must_use]
    pub fn registered(&self, row: &MappingRow) -> u64 {
        self.of(row.kind()).pages(row.bytes)
    }

    /// Host pages that unregistering a row walks.
    #[must_use]
    pub fn unregistered(&self, row: &MappingRow) -> u64 {
        let whole = self.of(row.kind()).round_up(row.bytes).unwrap_or(row.bytes);
        self.host.pages(whole)
    }
}

impl MappingRow {
    /// The medians of both calls together, as the seed's table has it.
    #[must_use]
    pub fn pair_median(&self) -> f64 {
        self.register.median + self.unregister.median
    }

    /// Which pages the allocation was made of: by size and policy, through `aclrtMalloc` on v2.
    #[must_use]
    pub fn kind(&self) -> PageKind {
        kind_of(self.bytes, self.policy, Generation::V2)
    }
}

/// A sweep.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sweep {
    /// Where it comes from, line by line.
    pub source: Vec<String>,
    /// The machine's page sizes.
    pub pages: Pages,
    /// Registrations, sizes growing within each policy.
    pub mappings: Vec<MappingRow>,
    /// Copies.
    pub copies: Vec<CopyRow>,
    /// What was refused.
    pub refused: Vec<RefusedRow>,
    /// What a reader must know of the circumstances.
    pub notes: Vec<String>,
}

/// Reads a sweep from files: JSON as `hostview sweep --json` writes it, or CSV tables of registrations, of copies, or of both kinds together.
///
/// # Errors
///
/// A file cannot be read, or is wrong at a line.
pub fn load(files: &[impl AsRef<Path>]) -> Result<Sweep, ConfigError> {
    let mut sweep = Sweep::default();
    for file in files {
        let (path, place) = (file.as_ref(), file.as_ref().display().to_string());
        let text = config::read(path)?;
        if path.extension().is_some_and(|ext| ext == "json") {
            parse_json(&text, &place, &mut sweep)?;
        } else {
            parse(&text, &place, &mut sweep)?;
        }
    }
    Ok(sweep)
}

fn parse_json(text: &str, place: &str, sweep: &mut Sweep) -> Result<(), ConfigError> {
    let read: Sweep = serde_json::from_str(text).map_err(|error| ConfigError::Line {
        place: place.to_owned(),
        line: error.line(),
        problem: config::explain(&without_place(&error)),
    })?;
    read.check().map_err(|problem| ConfigError::Unreadable { place: place.to_owned(), problem })?;
    sweep.source.extend(read.source);
    sweep.notes.extend(read.notes);
    sweep.pages = read.pages;
    sweep.mappings.extend(read.mappings);
    sweep.copies.extend(read.copies);
    Ok(())
}

/// Reads one CSV text into a sweep.
///
/// # Errors
///
/// The text is wrong at a line; `place` is what messages call it.
pub fn parse(text: &str, place: &str, sweep: &mut Sweep) -> Result<(), ConfigError> {
    let wrong = |line: usize, problem: String| ConfigError::Line { place: place.to_owned(), line, problem };
    for (index, line) in text.lines().enumerate() {
        let Some(comment) = line.strip_prefix('#') else { continue };
        read_comment(comment.trim(), sweep).map_err(|problem| wrong(index + 1, problem))?;
    }
    let mut reader =
        csv::ReaderBuilder::new().comment(Some(b'#')).trim(csv::Trim::All).flexible(true).from_reader(text.as_bytes());
    let header = reader.headers().map_err(|error| wrong(1, error.to_string()))?.clone();
    let header_line = text.lines().position(|line| !line.starts_with('#') && !line.trim().is_empty()).unwrap_or(0) + 1;
    if header.is_empty() || header.get(0) == Some("") {
        return Err(wrong(1, "is empty; the first line names the columns, as in fixtures/sweeps".to_owned()));
    }
    let columns = Columns { names: header.iter().map(str::to_owned).collect() };
    let of_mappings = columns.has("reg_med") || columns.has("reg_min") || !columns.has("d2h_med_us");
    let needed: &[&str] = if of_mappings {
        &["bytes", "reg_min", "reg_med", "unreg_min", "unreg_med"]
    } else {
        &["bytes", "d2h_min_us", "d2h_med_us"]
    };
    if let Some(missing) = needed.iter().find(|name| !columns.has(name)) {
        let there = columns.names.join(", ");
        return Err(wrong(header_line, format!("the column `{missing}` is missing; there are {there}")));
    }
    let mut before: Option<(u64, PagePolicy)> = None;
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| {
            let line = error.position().map_or(0, csv::Position::line);
            wrong(usize::try_from(line).unwrap_or(0), error.to_string())
        })?;
        let line = usize::try_from(record.position().map_or(0, csv::Position::line)).unwrap_or(0);
        let row = Row { columns: &columns, record: &record };
        let (bytes, policy) = (|| Ok((row.bytes()?, row.policy()?)))().map_err(|problem| wrong(line, problem))?;
        let smaller = before.filter(|(_, same)| *same == policy).map(|(bytes, _)| bytes);
        check_size(bytes, smaller).map_err(|problem| wrong(line, problem))?;
        before = Some((bytes, policy));
        rows.push(line);
        if of_mappings {
            sweep.mappings.push(row.mapping(bytes, policy).map_err(|problem| wrong(line, problem))?);
        } else {
            sweep.copies.push(row.copy(bytes).map_err(|problem| wrong(line, problem))?);
        }
    }
    match &rows[..] {
        [] => Err(wrong(header_line, "has no rows; give one line for each size".to_owned())),
        [only] if of_mappings => Err(wrong(
            *only,
            "is the only row, and one size cannot tell a floor from a cost per page; give two sizes at least"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}

/// A size is over 0, and over the one before it.
fn check_size(bytes: u64, smaller: Option<u64>) -> Result<(), String> {
    match smaller {
        _ if bytes == 0 => Err("`bytes` is 0; give a size".to_owned()),
        Some(smaller) if bytes <= smaller => Err(format!("sizes must grow: {bytes} follows {smaller}")),
        _ => Ok(()),
    }
}

fn read_comment(comment: &str, sweep: &mut Sweep) -> Result<(), String> {
    let (key, value) = comment.split_once(':').map_or((comment, ""), |(key, value)| (key.trim(), value.trim()));
    let page = match key {
        "page_size" => &mut sweep.pages.ordinary,
        "huge_page_size" => &mut sweep.pages.huge,
        "host_page_size" => &mut sweep.pages.host,
        _ => {
            sweep.source.push(comment.to_owned());
            return Ok(());
        }
    };
    let bytes: u64 = value.parse().map_err(|_| format!("`{key}` is `{value}`; give a number of bytes"))?;
    *page = PageSize::try_from(bytes).map_err(|error| error.to_string())?;
    Ok(())
}

struct Columns {
    names: Vec<String>,
}

impl Columns {
    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|column| column == name)
    }
}

struct Row<'a> {
    columns: &'a Columns,
    record: &'a csv::StringRecord,
}

impl Row<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let index = self.columns.names.iter().position(|column| column == name)?;
        self.record.get(index).filter(|cell| !cell.is_empty())
    }

    fn bytes(&self) -> Result<u64, String> {
        let text = self.get("bytes").ok_or("`bytes` is empty")?;
        text.parse().map_err(|_| format!("`bytes` is `{text}`; give a whole number"))
    }

    fn policy(&self) -> Result<PagePolicy, String> {
        let Some(word) = self.get("policy") else { return Ok(PagePolicy::default()) };
        word.parse().map_err(|mend| format!("`policy` is `{word}`; {mend}"))
    }

    fn micros(&self, name: &str) -> Result<Option<f64>, String> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let micros: f64 = text.parse().map_err(|_| format!("`{name}` is `{text}`; give microseconds"))?;
        if micros.is_finite() && micros > 0.0 {
            Ok(Some(micros))
        } else {
            Err(format!("`{name}` is {text}; a call takes more than 0 µs"))
        }
    }

    fn needed(&self, name: &str) -> Result<f64, String> {
        self.micros(name)?.ok_or_else(|| format!("`{name}` is empty; give microseconds"))
    }

    fn figures(&self, min: &str, median: &str, p99: &str) -> Result<Figures, String> {
        let figures = Figures { min: self.needed(min)?, median: self.needed(median)?, p99: self.micros(p99)? };
        if figures.min > figures.median {
            return Err(format!("`{min}` is {}, over `{median}`, which is {}", figures.min, figures.median));
        }
        Ok(figures)
    }

    fn mapping(&self, bytes: u64, policy: PagePolicy) -> Result<MappingRow, String> {
        let register = self.figures("reg_min", "reg_med", "reg_p99")?;
        let unregister = self.figures("unreg_min", "unreg_med", "unreg_p99")?;
        Ok(MappingRow { bytes, policy, register, unregister })
    }

    fn copy(&self, bytes: u64) -> Result<CopyRow, String> {
        let to_host = self.figures("d2h_min_us", "d2h_med_us", "d2h_p99_us")?;
        let to_device = match self.micros("h2d_med_us")? {
            Some(_) => Some(self.figures("h2d_min_us", "h2d_med_us", "h2d_p99_us")?),
            None => None,
        };
        Ok(CopyRow { bytes, to_host, to_device })
    }
}

impl Sweep {
    /// What CSV is asked for row by row, of rows that came otherwise.
    fn check(&self) -> Result<(), String> {
        if self.mappings.is_empty() && self.copies.is_empty() {
            return Err("has no rows; give one for each size".to_owned());
        }
        if let [only] = &self.mappings[..] {
            let bytes = only.bytes;
            return Err(format!(
                "mappings[0]: {bytes} is the only size, and one cannot tell a floor from a cost per page"
            ));
        }
        let mut before: Option<(u64, PagePolicy)> = None;
        for (index, row) in self.mappings.iter().enumerate() {
            let at = |problem| format!("mappings[{index}]: {problem}");
            let smaller = before.filter(|(_, policy)| *policy == row.policy).map(|(bytes, _)| bytes);
            check_size(row.bytes, smaller).map_err(at)?;
            row.register.check("register").and(row.unregister.check("unregister")).map_err(at)?;
            before = Some((row.bytes, row.policy));
        }
        for (index, row) in self.copies.iter().enumerate() {
            let at = |problem| format!("copies[{index}]: {problem}");
            let smaller = index.checked_sub(1).map(|before| self.copies[before].bytes);
            check_size(row.bytes, smaller).map_err(at)?;
            let to_device = row.to_device.map_or(Ok(()), |figures| figures.check("to_device"));
            row.to_host.check("to_host").and(to_device).map_err(at)?;
        }
        Ok(())
    }

    fn comments(&self) -> String {
        let mut text: String = self.source.iter().chain(&self.notes).map(|line| format!("# {line}\n")).collect();
        let Pages { ordinary, huge, host } = self.pages;
        for (key, page) in [("page_size", ordinary), ("huge_page_size", huge), ("host_page_size", host)] {
            let _ = writeln!(text, "# {key}: {}", page.bytes());
        }
        text
    }

    /// The registrations as CSV.
    #[must_use]
    pub fn mappings_as_csv(&self) -> String {
        let mut text = self.comments();
        text += "bytes,policy,reg_min,reg_med,reg_p99,unreg_min,unreg_med,unreg_p99,pair_med\n";
        for row in &self.mappings {
            let [register, unregister] = [row.register, row.unregister].map(cells);
            let policy = row.policy.name();
            let _ = writeln!(text, "{},{policy},{register},{unregister},{:.3}", row.bytes, row.pair_median());
        }
        text
    }

    /// The copies as CSV.
    #[must_use]
    pub fn copies_as_csv(&self) -> String {
        let mut text = self.comments();
        text += "bytes,d2h_min_us,d2h_med_us,d2h_p99_us,h2d_min_us,h2d_med_us,h2d_p99_us\n";
        for row in &self.copies {
            let to_device = row.to_device.map_or_else(|| ",,".to_owned(), cells);
            let _ = writeln!(text, "{},{},{to_device}", row.bytes, cells(row.to_host));
        }
        text
    }

    /// How far the figures of a row lie apart, over all rows; nothing where no spread was measured.
    fn spread_as_text(&self) -> String {
        let of = |figures: Figures| figures.p99.map(|p99| (p99 - figures.min) / figures.median);
        let range = |spreads: Vec<f64>| {
            let (low, high) =
                spreads.iter().fold((f64::MAX, 0.0_f64), |(low, high), spread| (low.min(*spread), high.max(*spread)));
            (!spreads.is_empty()).then(|| format!("{:.0} to {:.0} %", low * 100.0, high * 100.0))
        };
        let register = range(self.mappings.iter().filter_map(|row| of(row.register)).collect());
        let unregister = range(self.mappings.iter().filter_map(|row| of(row.unregister)).collect());
        let copies = range(self.copies.iter().filter_map(|row| of(row.to_host)).collect());
        let named = [("register", register), ("unregister", unregister), ("copies", copies)];
        let said: Vec<String> =
            named.into_iter().filter_map(|(name, range)| Some(format!("{name} {}", range?))).collect();
        if said.is_empty() {
            return String::new();
        }
        format!("\nspread, from the least to the 99th percentile, of the median:\n  {}\n", said.join(", "))
    }

    /// Both tables in the seed's own layout, with the 99th percentiles.
    #[must_use]
    pub fn as_text(&self) -> String {
        let mut text = String::new();
        for policy in PagePolicy::ALL {
            let rows: Vec<&MappingRow> = self.mappings.iter().filter(|row| row.policy == policy).collect();
            let refused: Vec<&RefusedRow> = self.refused.iter().filter(|row| row.policy == policy).collect();
            if rows.is_empty() && refused.is_empty() {
                continue;
            }
            let _ = writeln!(text, "register / unregister, µs, {}", policy.name());
            let heads = ["reg_min", "reg_med", "reg_p99", "unreg_min", "unreg_med", "unreg_p99", "pair_med"];
            let heads: String = heads.iter().map(|head| format!(" {head:>9}")).collect();
            let _ = writeln!(text, "{:>10}{heads}", "bytes");
            for row in rows {
                let [register, unregister] = [row.register, row.unregister].map(|figures| {
                    let p99 = figures.p99.map_or_else(|| "-".to_owned(), |p99| format!("{p99:.3}"));
                    format!(" {:>9.3} {:>9.3} {p99:>9}", figures.min, figures.median)
                });
                let _ = writeln!(text, "{:>10}{register}{unregister} {:>9.3}", row.bytes, row.pair_median());
            }
            for row in refused {
                let _ = writeln!(text, "{:>10}   refused: {}", row.bytes, row.answer);
            }
            text.push('\n');
        }
        if !self.copies.is_empty() {
            let _ = writeln!(text, "device copies, µs");
            let heads = ["d2h_min_us", "d2h_med_us", "d2h_p99_us", "h2d_min_us", "h2d_med_us", "h2d_p99_us"];
            let heads: String = heads.iter().map(|head| format!(" {head:>10}")).collect();
            let _ = writeln!(text, "{:>10}{heads}", "bytes");
            for row in &self.copies {
                let directions: String = [Some(row.to_host), row.to_device]
                    .into_iter()
                    .flatten()
                    .map(|figures| {
                        let p99 = figures.p99.map_or_else(|| "-".to_owned(), |p99| format!("{p99:.3}"));
                        format!(" {:>10.3} {:>10.3} {p99:>10}", figures.min, figures.median)
                    })
                    .collect();
                let _ = writeln!(text, "{:>10}{directions}", row.bytes);
            }
        }
        text += &self.spread_as_text();
        text
    }
}

fn cells(figures: Figures) -> String {
    let p99 = figures.p99.map_or_else(String::new, |p99| format!("{p99:.3}"));
    format!("{:.3},{:.3},{p99}", figures.min, figures.median)
}
