# frozen_string_literal: true

require "fileutils"
require "json"
require "net/http"
require "open3"
require_relative "kept_process"
require_relative "waiting"

# A headless Chromium, driven by WebDriver. It, its driver and its profile do not outlive this process.
class Browser
  include Waiting

  SCREENSHOTS = File.expand_path("../../tmp/screenshots", __dir__)

  # Debian's names first.
  PROGRAMS = %w[chromium chromium-browser google-chrome google-chrome-stable].freeze

  ARGUMENTS = %w[
    --headless=new --remote-debugging-pipe --window-size=1200,1000
    --no-sandbox --disable-dev-shm-usage
    --no-proxy-server --disable-background-networking --disable-component-update --disable-sync --no-first-run
    --disable-background-timer-throttling --disable-renderer-backgrounding --disable-backgrounding-occluded-windows
  ].freeze

  # Seconds that starting it, or a command, may take on a busy machine.
  PATIENCE = 30

  class << self
    # Why there can be none here: only where Debian's testing has none just now. Anywhere else a missing browser is a
    # failure.
    def unavailable
      return unless ENV["PGBUS_NATIVE_SUITE"] == "forky" && !(program("chromium") && program("chromedriver"))

      _, status = Open3.capture2e("apt-cache", "show", "chromium", "chromium-driver")
      "Debian forky has no Chromium just now" unless status.success?
    end

    # The one that examples share, since starting one takes seconds.
    def shared
      @shared ||= new
    end

    def quit_shared
      @shared&.quit
      @shared = nil
    end

    # @return [String, nil] the path of the first of these programs that there is
    def program(*names)
      folders = ENV.fetch("PATH").split(File::PATH_SEPARATOR)
      names.product(folders).map { |name, folder| File.join(folder, name) }.find { |path| File.executable?(path) }
    end
  end

  # @raise [RuntimeError] where a program is missing, or does not start
  def initialize
    require "selenium-webdriver"

    chromium, driver = [PROGRAMS, %w[chromedriver]].map do |names|
      self.class.program(*names) || raise("there is no #{names.first} here: see the packages in bin/setup")
    end
    # Neither the driver nor, below it, the browser is to go through a proxy.
    without_proxies = ENV.keys.grep(/_proxy\z/i).to_h { |name| [name, nil] }
    # What they leave behind, they leave where it is removed.
    @process = KeptProcess.new(without_proxies) do |directory|
      ["env", "HOME=#{directory}", "TMPDIR=#{directory}", driver, "--port=0"]
    end
    connect(chromium)
  rescue StandardError
    quit
    raise
  end

  # Opens a tab, in front.
  #
  # @return [String] what the other methods take
  def open(address)
    @driver.switch_to.new_window(:tab)
    @driver.navigate.to(address)
    tabs << @driver.window_handle
    tabs.last
  end

  # Yields Selenium's driver with the tab in front.
  def within(tab)
    @driver.switch_to.window(tab)
    yield @driver
  end

  # What the script returns in the tab.
  def run(tab, script, *arguments)
    within(tab) { |driver| driver.execute_script(script, *arguments) }
  end

  def close(tab)
    within(tab, &:close)
    tabs.delete(tab)
  end

  def close_all
    tabs.dup.each { |tab| close(tab) }
    @driver.switch_to.window(@first)
  end

  # Shows the tab as a screen of this size would, a phone's for one.
  def resize(tab, width, height)
    within(tab) do
      post("goog/cdp/execute", cmd: "Emulation.setDeviceMetricsOverride",
                               params: { width:, height:, deviceScaleFactor: 2, mobile: true })
    end
  end

  # Makes a picture of each open tab.
  #
  # @return [Array<String>] their paths
  def screenshots(title)
    FileUtils.mkdir_p(SCREENSHOTS)
    tabs.each_with_index.map do |tab, index|
      path = File.join(SCREENSHOTS, "#{title.gsub(/\W+/, "-")[0, 80]}-#{index + 1}.png")
      within(tab) { |driver| driver.save_screenshot(path) }
      path
    end
  end

  def quit
    @driver&.quit
  rescue StandardError
    nil # it has gone already
  ensure
    @process&.finish
  end

  private

  def tabs
    @tabs ||= []
  end

  def connect(chromium)
    arguments = [*ARGUMENTS, "--user-data-dir=#{@process.directory}/profile"]
    # Capabilities as such: how options are handed over differs between the versions of selenium-webdriver.
    capabilities = Selenium::WebDriver::Remote::Capabilities.new(
      "browserName" => "chrome", "goog:chromeOptions" => { "binary" => chromium, "args" => arguments }
    )
    client = Selenium::WebDriver::Remote::Http::Default.new(open_timeout: 10, read_timeout: PATIENCE)
    client.proxy = Selenium::WebDriver::Proxy.new(no_proxy: "127.0.0.1")
    @address = "http://127.0.0.1:#{port}"
    @driver = Selenium::WebDriver.for(:remote, url: @address, http_client: client, capabilities:)
    @first = @driver.window_handle
  end

  # Where the driver listens, which it says in its log.
  def port
    wait_until("chromedriver starts", within: PATIENCE) { @process.log[/on port (\d+)\.$/, 1] }
  end

  # A command that Selenium's driver has no method for in all versions.
  def post(command, **body)
    uri = URI("#{@address}/session/#{@driver.session_id}/#{command}")
    answer = Net::HTTP.post(uri, JSON.generate(body), "content-type" => "application/json")
    raise answer.body unless answer.is_a?(Net::HTTPSuccess)
  end
end
